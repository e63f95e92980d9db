"""What would go wrong on a host, said before anything is changed there: pure rules on facts and declarations."""
