"""Addresses that anyone may open who was given them: below c/."""

from django.urls import path

from cohort.web.after_seal import public_views

urlpatterns = [
    path("<str:token>/", public_views.public_card_page, name="public_card"),
    path("<str:token>/card.zip", public_views.public_card_download, name="public_card_download"),
]
