"""The recipe of the embedded model `mini`: data, phases, training loop, export, acceptance report."""
