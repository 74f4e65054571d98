"""What people name as inputs, turned into photos one by one."""
