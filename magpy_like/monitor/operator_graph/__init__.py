"""The operator graph: a torch.fx graph of the tensor operators that ran."""
