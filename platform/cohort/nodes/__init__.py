"""Machines that take runs: what they have, what they lack, who may use them."""
