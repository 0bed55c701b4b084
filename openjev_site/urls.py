"""Every address of the site, and the answers to those that are none."""

from django.urls import URLPattern, URLResolver, path

from evaluations import views
from openjev_site import pages

urlpatterns: list[URLPattern | URLResolver] = [
    # first, because addresses are tried in turn
    path("v1/systemone", views.SystemOneView.as_view(), name="systemone"),
    *pages.urlpatterns,
    path("openapi.json", views.OpenAPIView.as_view(), name="openapi"),
    path("health", views.HealthView.as_view(), name="health"),
    path("health/live", views.LivenessView.as_view(), name="liveness"),
    path("v1/models", views.ModelsView.as_view(), name="models"),
    path("v1/models/<path:name>", views.ModelView.as_view(), name="model"),
    path("v1/limits", views.LimitsView.as_view(), name="limits"),
    path("v1/<path:rest>", views.UnknownRouteView.as_view(), name="unknown"),
]

handler400 = "evaluations.errors.bad_request"
handler404 = "evaluations.errors.not_found"
handler500 = "evaluations.errors.server_error"
