"""Arrays, options, files and roles that all other packages use. Nothing here knows of learning."""
