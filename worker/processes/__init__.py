"""The processes of a trainer or job: started, kept together, ended as a whole, and found again after a crash."""
