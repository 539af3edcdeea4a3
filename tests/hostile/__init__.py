"""A thousand hostile sockets against one `commandbus serve`, while another user goes on working."""
