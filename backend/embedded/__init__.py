"""The embedded CPU engine: weights, arithmetic, prefix cache and its HTTP front.

A process of its own that speaks SGLang's native protocol; the rest of the product reaches it only
over that protocol. It knows token ids and never text.
"""
