"""The worker: claims runs from the platform over HTTP, supervises one trainer process each, ships what it records.

Knows no Django, no database and no torch, and never imports `cohort`. The host runs untrusted reward code, so all it
holds is the broker's address, the platform's URL and a node token, and the trainer sees none of these.
"""
