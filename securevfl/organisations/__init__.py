"""Parties on machines of their own: join, align, predict, and what each of them is handed."""
