"""Credit tools: scorecards, reason codes, drift, fairness by group, correlations, descriptions and export."""
