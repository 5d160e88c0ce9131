"""Methods that merge what must go into slots that stay, or into a state beside them."""
