"""Every address of the site, and the answers to those that are none."""

from django.urls import URLPattern, URLResolver

from openjev_site import pages

urlpatterns: list[URLPattern | URLResolver] = [*pages.urlpatterns]

handler400 = "evaluations.errors.bad_request"
handler404 = "evaluations.errors.not_found"
handler500 = "evaluations.errors.server_error"
