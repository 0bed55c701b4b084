// Starts Scalar on the page at "/". Everything that would call another host is switched off.
"use strict";

const place = document.getElementById("reference");
Scalar.createApiReference(place, {
  url: place.dataset.document,
  // Samples and requests go to the address the reader sees, whatever name it has.
  servers: [{ url: window.location.origin }],
  withDefaultFonts: false,
  telemetry: false,
  agent: { disabled: true, hideAddApi: true },
  mcp: { disabled: true },
  hideClientButton: true,
  showDeveloperTools: "never",
  persistAuth: false,
  defaultOpenAllTags: true,
  documentDownloadType: "json",
  defaultHttpClient: { targetKey: "shell", clientKey: "curl" },
});
