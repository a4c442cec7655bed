"""Output for people: progress bars, HTML pages, notebook cells and SVG charts.

The modules format text and numbers that their callers pass. They import nothing that has to do with jobs or trainings.
"""
