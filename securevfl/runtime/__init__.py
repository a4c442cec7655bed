"""What carries a party's messages and keeps its time and its books: channel, codec, clock, books, executor."""
