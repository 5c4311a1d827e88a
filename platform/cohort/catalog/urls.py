"""Addresses of the catalog: below p/<slug>/."""

from django.urls import path

urlpatterns: list = []
