"""Evaluations over many workers: a plan of shards, workers that share one folder, and what starts them."""
