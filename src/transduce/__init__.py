"""transduce: speech to text with RNN-T, TDT and CTC models."""
