"""What makes a card checkable: canonical bytes, Merkle trees, signatures, and the check itself.

Runs wherever Python and `cryptography` are: knows no Django, no pydantic, no network and no torch, because all of it
goes into the verify.pyz of every card. Of `grpo_core` it takes only modules that import nothing but Python.
"""
