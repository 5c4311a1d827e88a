"""Cohort on one machine without root: database, broker, web server and workers below one folder, the home.

`home` owns the folder, `postgres` the database server, `children` the processes, `up` their order. Nothing in
here is used in production, where each part is started by the machine's own service manager.
"""
