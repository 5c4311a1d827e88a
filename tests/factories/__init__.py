"""What tests start from: people, a catalog, runs, records; made through the services wherever there is one."""
