// Starts Swagger UI on the page at "/docs", with the evaluation opened and ready to be sent.
"use strict";

const place = document.getElementById("swagger-ui");
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
follow();
dark.addEventListener("change", follow);

const ui = SwaggerUIBundle({
  domNode: place,
  url: place.dataset.document,
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  deepLinking: true,
  docExpansion: "list",
  displayRequestDuration: true,
  tryItOutEnabled: true,
  defaultModelsExpandDepth: 0,
  validatorUrl: null,
  onComplete: () => {
    if (!window.location.hash) {
      ui.layoutActions.show(["operations", "System One", "evaluate"], true);
    }
  },
});
