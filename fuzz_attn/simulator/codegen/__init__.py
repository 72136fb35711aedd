"""Code generation: from a parsed kernel to numpy source over the whole grid."""
