"""What several tests share: small networks of every kind, posteriors over them, and tests of
distributions.
"""
