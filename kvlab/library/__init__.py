"""What is kept in a folder of runs: listed, searched, labelled, binned, carried elsewhere. Torch-free."""
