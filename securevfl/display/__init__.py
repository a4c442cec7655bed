"""What people see: progress, pages and notebook cells, pictures. It knows text and numbers, and no job or run."""
