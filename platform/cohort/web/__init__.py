"""Pages and their addresses. One folder a noun, as in templates/. No other folder imports this one."""
