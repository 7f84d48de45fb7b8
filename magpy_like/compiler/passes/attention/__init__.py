"""Attention as library operators: passes over captured graphs.

``attention_rewrite``: hand-written attention as ``scaled_dot_product_attention``
``filled_attention``: the operator for attention with filled (``masked_fill``) scores
``grouped_queries``: attention of one position to keys and values shared by groups of heads
``attention_masks``: constant masks that mask nothing, or are causal
"""
