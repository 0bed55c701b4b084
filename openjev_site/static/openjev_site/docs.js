// Starts Swagger UI on the page at "/docs".
"use strict";

const place = document.getElementById("swagger-ui");

SwaggerUIBundle({
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
});
