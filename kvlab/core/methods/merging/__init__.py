"""Methods that merge victims into kept slots or a low-rank state."""
