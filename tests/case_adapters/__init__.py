"""Adapters: what a suite of cases written for another engine calls, in terms of our public names."""
