"""Certificates, keys and secrets: files that prove who somebody is, and what is made of them."""
