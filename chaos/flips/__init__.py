"""Bits that flip below members that run: is each found, put right, and never served?"""
