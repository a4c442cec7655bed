"""Output for people: progress bars, HTML pages, notebook cells and SVG charts.

The modules format text and numbers that their callers pass; they use nothing of jobs and trainings.
"""
