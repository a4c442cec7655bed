"""Arrays, options, files and roles that all other packages use; nothing in it depends on machine learning."""
