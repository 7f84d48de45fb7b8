"""Operators that stay with the libraries of eager mode, and the choice between libraries.

``recurrent_layers``: LSTM, GRU and RNN layers as one operator each
``matrix_products``: oneDNN, narrow-product kernels or the BLAS
``gpu_biases``: biases of convolutions and products on a GPU as additions
"""
