"""What happens to a record after it was sealed: sign-off, revocation, incidents, feedback, monitoring, the public page.

Everything is appended and logged; nothing is edited. A wrong entry is corrected by a further one that names it.
"""
