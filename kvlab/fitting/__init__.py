"""Fitting what a method learns to a model, from text: LESS's feature maps (`kvlab train-less`)."""
