"""Stands in for the one operator of vLLM that SGLang asks for on a machine without accelerator."""
