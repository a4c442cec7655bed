"""How the parts of a sum go up: in the clear, under masks, under a key, over trees."""
