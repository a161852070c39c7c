"""dodeca"""
