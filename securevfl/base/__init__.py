"""What every room stands on: arrays, options, files, roles. It knows nothing of learning."""
