"""Output for people: progress, pages, notebook cells and charts of text and numbers. It knows no job and no run."""
