"""Template filters: how numbers, times and model text are shown everywhere."""

from django import template

register = template.Library()
