"""Address of what people state of a run: below p/<slug>/."""

from django.urls import path

from cohort.web.statements import views

urlpatterns = [path("runs/<int:run_id>/statements/", views.run_statements, name="run_statements")]
