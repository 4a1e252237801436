"""Messages and bytes that nobody should send, sent to a real server; what a wrong answer is."""
