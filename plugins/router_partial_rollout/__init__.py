"""Continues a generation that its worker aborted for a weight update: the client sees one answer."""
