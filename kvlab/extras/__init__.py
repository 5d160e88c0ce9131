"""What needs another engine's environment; nothing else imports it, and its commands are loaded when asked for."""
