"""What this machine is to Forerun, and what would make it faster: looked at first, judged afterwards."""
